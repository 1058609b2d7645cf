"""python3 -m deploy"""

from deploy.cli import main

if __name__ == "__main__":
    main()
